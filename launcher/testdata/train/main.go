// Command train stands where the train binary would, and does what the stage's
// file says.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "linger" { // a child that left its session
		rest()
	}
	src, err := os.ReadFile("/in/stage/stage.json")
	if err != nil {
		panic(err)
	}
	var stage struct {
		Do string `json:"do"`
		N  int    `json:"n"`
	}
	if err := json.Unmarshal(src, &stage); err != nil {
		panic(err)
	}
	switch stage.Do {
	case "look": // tells what it was given
		entries, _ := os.ReadDir("/proc/self/fd")
		dir, _ := os.Getwd()
		json.NewEncoder(os.Stdout).Encode(map[string]any{
			"args": os.Args, "env": os.Environ(), "fds": len(entries) - 1, "uid": os.Getuid(), "gid": os.Getgid(), "dir": dir,
		})
		if err := os.WriteFile("/spool/log", []byte("kept"), 0o666); err != nil {
			panic(err)
		}
		os.MkdirAll("/spool/sub", 0o777)
		os.WriteFile(os.Getenv("HOME")+"/scratch", []byte("not kept"), 0o666)
	case "exit":
		fmt.Fprintln(os.Stderr, "that did not go well")
		os.Exit(stage.N)
	case "talk":
		os.Stdout.WriteString(strings.Repeat("x", stage.N))
	case "litter": // leaves what nobody but root could remove, of n KiB
		os.WriteFile("/spool/big", make([]byte, stage.N<<10), 0o600)
		os.Symlink("/etc/passwd", "/spool/link")
		os.Mkdir("/spool/-rf\n*", 0o777)
		os.WriteFile("/spool/-rf\n*/\xff", nil, 0)
		syscall.Mkfifo("/spool/pipe", 0)
		at := "/spool/deep"
		for range 50 {
			os.Mkdir(at, 0o700)
			os.WriteFile(at+"/file", []byte("x"), 0)
			at += "/deep"
		}
		os.Chmod("/spool/deep/deep", 0)
		os.Chmod("/spool/deep", 0)
	case "sleep": // until SIGTERM
		os.WriteFile("/spool/running", nil, 0o666)
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		<-terminated
		os.Exit(130)
	case "stubborn": // for ever
		signal.Ignore(syscall.SIGTERM)
		os.WriteFile("/spool/running", nil, 0o666)
		rest()
	case "daemon": // leaves a process of another session, and waits for ever
		child := exec.Command("/proc/self/exe", "linger")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		os.WriteFile("/spool/running", nil, 0o666)
		rest()
	default:
		panic("no such deed: " + stage.Do)
	}
}

// rest waits for ever. With nothing else to run, select would be a deadlock.
func rest() {
	for {
		syscall.Pause()
	}
}
