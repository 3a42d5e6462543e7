// Command hanzo-link is the agent of a linked machine: it asks the cloud for work, and
// has the launcher start what the machine's owner admits. systemd starts it, as the
// user hanzo-link; with --presence it runs as whoever linked the machine, and only
// says that the machine is there.
package main

import "os"

func main() { os.Exit(run(os.Args[1:])) }
