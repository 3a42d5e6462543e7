package kai

// Loss is the loss of one step, in nats per unit of question weight. Total is
// what the gradients are of.
type Loss struct {
	Total        float64
	CrossEntropy float64 // against the rows' targets
	Ranked       float64 // the ranked probability score of score questions
	Retrieval    float64 // listwise cross-entropy, before its weight of .1

	Questions                 int
	Weight                    float64
	Context, Options, Entered int // tokens of contexts, tokens of distinct options, options that entered the head
}

// Step leaves in every learning parameter's Grad the gradient of the mean loss,
// by question weight, over all inputs of all micro-batches. texts is the
// Encoder's. The result does not depend on where the micro-batches are cut. A
// loss that is not finite is returned as it is; its gradients are worthless.
func (m *Model) Step(texts *Texts, micro [][]Input) Loss { panic("kai: unwritten") }
