"""Critics: what a state is worth, from information the policy's action did not cause."""
