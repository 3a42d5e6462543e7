package store

import "github.com/hanzoai/link/policy"

func space(dir string) (policy.Free, error) { return policy.HostFree(dir) }
