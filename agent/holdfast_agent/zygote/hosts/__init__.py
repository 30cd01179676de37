"""What a zygote keeps beside its ranks: the stores of generations, and the tests of a warm-up."""
