"""One peer of a stage: units in, gradients bound and averaged, seals checked and applied."""
