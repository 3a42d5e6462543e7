package kernels

// ExactPlan is the kernel plan of every device that computes this package's
// operations as they are defined: its bits depend on nothing else, so it names
// neither an instruction set nor a number of threads. Shapes are any.
func ExactPlan() []Selection {
	const (
		chain = "fma-chain:ascending"
		block = "fma-chain:ascending,block512"
		tree  = "lanes16,tree"
		none  = "none"
	)
	return []Selection{
		{"adamw", "f32", "any", "exact/1", none},
		{"add", "f32", "any", "exact/1", none},
		{"attend", "f32", "any", "exact/1", chain + ";" + tree},
		{"attend_back", "f32", "any", "exact/1", chain + ";" + tree},
		{"column_sum", "f32", "any", "exact/1", block},
		{"gather", "f32", "any", "exact/1", none},
		{"geglu", "f32", "any", "exact/1", none},
		{"geglu_back", "f32", "any", "exact/1", none},
		{"gelu", "f32", "any", "exact/1", none},
		{"gelu_back", "f32", "any", "exact/1", none},
		{"layer_norm", "f32", "any", "exact/1", tree},
		{"layer_norm_back", "f32", "any", "exact/1", tree + ";" + block},
		{"linear", "f32", "any", "exact/1", chain},
		{"linear_input", "f32", "any", "exact/1", chain},
		{"linear_weight", "f32", "any", "exact/1", block},
		{"mul", "f32", "any", "exact/1", none},
		{"probe", "f32", "any", "exact/1", none},
		{"probe_back", "f32", "any", "exact/1", "sum:ascending"},
		{"rope", "f32", "any", "exact/1", none},
		{"scale", "f32", "any", "exact/1", none},
		{"scatter", "f32", "any", "exact/1", "sum:ascending"},
		{"segment_mean", "f32", "any", "exact/1", "sum:ascending"},
		{"segment_mean_back", "f32", "any", "exact/1", none},
		{"sum_squares", "f64", "any", "exact/1", tree},
	}
}
