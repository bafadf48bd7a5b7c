"""What is kept, recomputed, or computed in pieces: curves of segments, chains of them, the plan made to fit."""
