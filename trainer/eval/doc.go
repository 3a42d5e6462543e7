// Package eval asks a Kai model the questions of sealed rows and says how well
// it answered.
//
// [Evaluate] answers every question of a dataset and returns the rows of the two
// artifacts of HIP-1334 §8.2, predictions and items, with the measures of §8.3
// computed from those items by package gate, so that what a run reports is what a
// gate recomputes. [FitTemperatures] chooses softmax temperatures on rows held
// out for it. [RiskOf] says how well confidence sorts right answers from wrong.
//
// It writes nothing and records nothing: package trainer does. It does not know
// which rows trained: the caller must not hand [FitTemperatures] rows that a
// gradient step read, nor rows that a suite grades.
package eval
