package agent

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hanzoai/link/agent/store"
	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/policy"
)

// trees is the store with this node's routes as its source: the loop's keeper.
type trees struct {
	*store.Store
	client *api.Client // of the node's credential
	node   string
}

var _ keeper = trees{}

// Pull implements keeper.
func (t trees) Pull(ctx context.Context, act, hash string, limit, held int64, progress func(done, total int64)) error {
	return t.Store.Pull(ctx, source{t.client, t.node, act}, hash, limit, held, progress)
}

// source is the trees that one activity names.
type source struct {
	client    *api.Client
	node, act string
}

// Tree implements store.Source.
func (s source) Tree(ctx context.Context, hash string) ([]policy.TreeFile, error) {
	tree, err := s.client.NodeTree(ctx, s.node, s.act, hash)
	if err != nil {
		return nil, final(err)
	}
	files := make([]policy.TreeFile, len(tree.Files))
	for i, f := range tree.Files {
		files[i] = policy.TreeFile(f)
	}
	return files, nil
}

// Open implements store.Source.
func (s source) Open(ctx context.Context, hash, sha256 string, offset int64) (io.ReadCloser, error) {
	body, err := s.client.NodeBlob(ctx, s.node, s.act, hash, sha256, offset)
	return body, final(err)
}

// final marks a refusal that the control plane itself has made and would make again.
// A page of a proxy, and a credential that is not accepted for now, are waited out.
func final(err error) error {
	p, ok := errors.AsType[*api.Problem](err)
	if !ok || p.Code == "" || p.Code == api.Unauthorized {
		return err
	}
	if retry, _ := api.Retryable(err); retry {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrRefused, err)
}
