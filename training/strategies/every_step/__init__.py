"""Strategy `every_step`: a pipeline of stages whose gradients are averaged at every step."""
