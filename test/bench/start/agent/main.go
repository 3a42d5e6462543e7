//go:build linux

// Command agent asks a launcher for starts over its real socket and reads the
// clock just before each. It does what a line of its input says and answers with a
// line:
//
//	run ACTIVITY STAGE BASE    starts it, waits for its end; answers with the time
//	                           of the request and the one that the workload printed
//	idle ACTIVITY STAGE BASE   starts it; answers with the time of the request
//
// Stage and base are names of trees in the launcher's store. Its end, at the end of
// the input, is the end of all that it started.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hanzoai/link/activity"
	"github.com/hanzoai/link/launcher/ipc"
	"github.com/hanzoai/link/policy"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: agent SOCKET")
	}
	conn, err := ipc.Dial(args[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	hello, _, err := conn.ReadReply()
	if err != nil {
		return err
	}
	if hello.Ready == nil || !slices.Contains(hello.Ready.Kinds, policy.TrainFit) {
		said, _ := json.Marshal(hello)
		return fmt.Errorf("the launcher offers no %s: %s", policy.TrainFit, said)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) != 4 {
			return fmt.Errorf("not understood: %q", lines.Text())
		}
		request, err := ask(words[1], words[2], words[3])
		if err != nil {
			return err
		}
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return err
		}
		if err := conn.WriteRequest(request); err != nil {
			return err
		}
		said, err := follow(conn, words[0] == "run")
		if err != nil {
			return fmt.Errorf("%s: %w", words[1], err)
		}
		fmt.Println(now.Nano(), said)
	}
	return lines.Err()
}

// ask is the request for one activity of kind train.fit.
func ask(id, stage, base string) (ipc.Request, error) {
	input, err := json.Marshal(policy.TrainFitInput{
		Stage: stage, Base: base, Memory: 1 << 28, CPUs: 1, Disk: 1 << 26, GPUs: []int{}, MaxSec: 3600,
	})
	now := time.Now().UTC()
	return ipc.Request{Start: &activity.Envelope{
		Activity: id, Kind: policy.TrainFit, Org: "bench", Project: "bench", Requester: "bench",
		Issued: now.Format(time.RFC3339), Deadline: now.Add(time.Minute).Format(time.RFC3339), Input: input,
	}}, err
}

// follow reads replies until the activity has started or, to its end, has ended,
// and returns what it printed.
func follow(conn *ipc.Conn, toItsEnd bool) (string, error) {
	for {
		reply, files, err := conn.ReadReply()
		if err != nil {
			return "", err
		}
		var first []byte
		for i, f := range files {
			if i == 0 && reply.Ended != nil {
				first, err = io.ReadAll(f)
			}
			f.Close()
		}
		switch {
		case err != nil:
			return "", err
		case reply.Refused != nil:
			return "", fmt.Errorf("refused, %s: %s", reply.Refused.Code, reply.Refused.Message)
		case reply.Started != nil && !toItsEnd:
			return "", nil
		case reply.Ended != nil && reply.Ended.Reason != activity.Done:
			return "", fmt.Errorf("%s, %s: %s %s", reply.Ended.State, reply.Ended.Code, reply.Ended.Message, first)
		case reply.Ended != nil:
			return strings.TrimSpace(string(first)), nil
		}
	}
}
