"""Speed: time, memory and error of planning, of a layer and of generated text. `ttcnet bench` runs it."""
