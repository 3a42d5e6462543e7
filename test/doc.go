// Package test holds what no single package can test: the import rules and
// module budgets, the published vectors, and the scripts that run the commands
// as a person would.
package test
