//go:build !linux

package linkcmd

import (
	"context"
	"io"
	"runtime"
)

func link(ctx context.Context, out io.Writer) error {
	p, err := here()
	if err != nil {
		return err
	}
	return p.link(ctx, out)
}

func unlink(ctx context.Context, out io.Writer) error {
	p, err := here()
	if err != nil {
		return err
	}
	return p.unlink(ctx, out)
}

func here() (presence, error) {
	bin, err := beside()
	if err != nil {
		return presence{}, err
	}
	return thisPresence(bin, "it is "+runtime.GOOS+", and the sandbox is made of Linux")
}
