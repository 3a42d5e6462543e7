// Command workload is what the sandbox's tests run inside it: each first argument is
// one behaviour.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	switch os.Args[1] {
	case "echo":
		fmt.Println(strings.Join(os.Args[2:], " "))
	}
}
