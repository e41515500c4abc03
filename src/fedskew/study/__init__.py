"""Many runs: plan them, execute them, judge them, show them."""
