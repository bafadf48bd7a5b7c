"""Host seconds of calling the nodes of a traced graph one after the other, as segment pairs do.

Figures are the profile's `pairs`. A node is one call. Views that a pair leaves out (`generate.plain`) cost nothing.
"""

from __future__ import annotations

from torch import fx

from meshwright.cluster.device_profile import DeviceProfile
from meshwright.cost.traced.call import op_name
from meshwright.cost.traced.fusible import is_fusible
from meshwright.cost.traced.kernels import KERNELS_PER_GROUP, fusion_groups
from meshwright.cost.traced.nodes import NodeCosts
from meshwright.cost.traced.storage import is_part, is_view

SEGMENT_S = 5e-5
"""Of running a half, whatever is in it: gathering its arguments, handing on its results. Seen in steps of GPT, Llama
and ResNet that an H200's host bounds, besides what their nodes take."""

VIEWS = {
    **dict.fromkeys(("t", "transpose", "permute", "unsqueeze", "squeeze"), "transpose"),
    **dict.fromkeys(("slice", "select", "narrow"), "slice"),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unbind"), "chunk"),
    "expand": "expand",
}
FORWARD = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), "matmul"),
    **dict.fromkeys(("native_layer_norm",), "layer_norm"),
    **dict.fromkeys(("_fused_rms_norm", "gpu_rms_norm"), "rms_norm"),
    **dict.fromkeys(("native_group_norm",), "group_norm"),
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "_batch_norm_with_update"), "batch_norm"),
    **dict.fromkeys(("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), "softmax"),
    **dict.fromkeys(("sum", "mean", "amax", "var_mean"), "mean"),
    **dict.fromkeys(("zeros", "ones", "full", "zeros_like", "ones_like", "new_zeros", "arange"), "fill"),
    **dict.fromkeys(("index", "index_select", "gather"), "gather"),
    **dict.fromkeys(("_to_copy",), "cast"),
    **dict.fromkeys(("clone", "copy"), "turned"),
    **dict.fromkeys(("cat", "stack"), "cat"),
    **dict.fromkeys(("constant_pad_nd",), "pad"),
    **dict.fromkeys(("convolution",), "convolution"),
    **{name: name for name in ("gelu", "silu", "relu", "embedding", "sort", "topk")},
    "native_dropout": "dropout",
    "max_pool2d_with_indices": "max_pool",
    "avg_pool2d": "avg_pool",
}
BACKWARD = {
    "native_layer_norm_backward": "layer_norm",
    **dict.fromkeys(("_fused_rms_norm_backward", "gpu_rms_norm_backward"), "rms_norm"),
    "native_group_norm_backward": "group_norm",
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"), "batch_norm"),
    "embedding_dense_backward": "embedding",
    **dict.fromkeys(("index_put", "index_add", "scatter_add"), "gather"),
    **dict.fromkeys(("slice_backward", "select_backward"), "slice"),
    "convolution_backward": "convolution",
    "max_pool2d_with_indices_backward": "max_pool",
    "avg_pool2d_backward": "avg_pool",
}


def graph_host_s(module: fx.GraphModule, costs: NodeCosts) -> float:
    """Of one half of a pair; zero where asking and doing are one."""
    profile = costs.profile
    launch_s = profile.host("multiply", pair=True)[0]
    if not launch_s:
        return 0.0
    scale = profile.host_scale
    if costs.fused:
        alone = sum(not is_fusible(node) for node in module.graph.nodes if node.op == "call_function")
        return SEGMENT_S * scale + launch_s * (alone + KERNELS_PER_GROUP * len(fusion_groups(module)))
    seen: set[object] = set()
    nodes = (node for node in module.graph.nodes if node.op == "call_function")
    return SEGMENT_S * scale + sum(_node_s(node, profile, seen) for node in nodes)


def _node_s(node: fx.Node, profile: DeviceProfile, seen: set[object]) -> float:
    if is_part(node):
        return 0.0
    name = op_name(node)
    if is_view(node):
        again = (node.target, repr(node.args))
        if name == "detach" or again in seen:
            return 0.0
        seen.add(again)
        return profile.host(VIEWS.get(name, "view"), pair=True)[0]
    side = 1 if name in BACKWARD or "backward" in name else 0
    if "attention" in name:
        return profile.host("attention", pair=True)[side]
    key = BACKWARD.get(name) or FORWARD.get(name)
    return profile.host(key, pair=True)[side] if key else profile.host("multiply", pair=True)[0]
