//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/hanzoai/link/control"
	"github.com/hanzoai/link/control/db"
)

// cloud serves the folder dir on descriptor 3, which outlives it, until ctx ends or
// it is killed. It is the control plane as hanzo-cloud serves it, without its
// command line.
func cloud(ctx context.Context, dir string, out io.Writer) (err error) {
	f := os.NewFile(3, "listener")
	if f == nil {
		return errors.New("no listener at descriptor 3")
	}
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return err
	}
	store, err := db.Open(dir, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	fmt.Fprintln(out, "serving")
	return control.New(control.Config{Store: store}).Serve(ctx, l)
}
