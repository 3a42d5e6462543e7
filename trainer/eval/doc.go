// Package eval asks a Kai model the questions of sealed rows and says how well
// it answered.
//
// [Evaluate] answers every question of a dataset and returns the rows of the two
// artifacts of HIP-1334 §8.2, predictions and items, with the measures of §8.3
// computed from those items by package gate, so that what a run reports is what a
// gate recomputes. [FitTemperatures] chooses softmax temperatures on rows held
// out for it. [RiskOf] says how well confidence sorts right answers from wrong.
//
// Beside another model's answers to the same rows stand [ChangeIn], how many more
// are right and whether that may be chance, and [KL], how far the probabilities
// moved. [MostCommon] and [Chance] say what answering without looking is worth, and
// [Flips] whether the order of a question's options moves an answer, which it must not.
//
// It writes nothing and records nothing: package trainer does. It does not know
// which rows trained: the caller must not hand [FitTemperatures] rows that a
// gradient step read, nor rows that a suite grades.
package eval
