// Guest is the program of the containers in the tests. Its first argument says what it does.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// variable is in the environment of the tests' image.
const variable = "GUEST"

func main() {
	if len(os.Args) < 2 {
		fail("no command")
	}
	switch args := os.Args[2:]; os.Args[1] {
	case "serve": // until SIGTERM
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGTERM)
		fmt.Println("up", os.Getpid(), os.Getuid())
		<-ended
		fmt.Println("bye")
		os.Exit(3)
	case "stubborn": // ignores SIGTERM, and has a child with a session of its own
		signal.Ignore(syscall.SIGTERM)
		spawn("deaf")
		fmt.Println("up", os.Getpid())
		wait()
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("child up")
		wait()
	case "leave": // leaves a child behind
		spawn("deaf")
		fmt.Println("left")
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			fail(err.Error())
		}
		fmt.Println("exits with", code)
		os.Exit(code)
	case "stdout": // as images whose logs are links
		if err := os.Symlink("/dev/stdout", "/tmp/access.log"); err != nil {
			fail(err.Error())
		}
		f, err := os.OpenFile("/tmp/access.log", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			fail(err.Error())
		}
		fmt.Fprintln(f, "through the link")
	case "files": // what the node gives, and whether this start is the first that writes here
		for _, name := range args {
			f, err := os.OpenFile(name+"/mark", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			fmt.Println(name, err)
			_ = f.Close()
		}
		hosts, err := os.ReadFile("/etc/hosts")
		fmt.Println("hosts", strings.TrimSpace(string(hosts)), err)
	case "say": // and end with the status
		fmt.Println(strings.Join(args, " "))
		fmt.Fprintln(os.Stderr, os.Getuid(), os.Getenv(variable), cwd())
	case "nap": // leaves a child that has another parent than this process
		spawn("deaf")
		wait()
	default:
		fail("unknown command " + os.Args[1])
	}
}

// wait waits for a signal that never comes. Without Notify, Go would find a deadlock.
func wait() {
	never := make(chan os.Signal, 1)
	signal.Notify(never, syscall.SIGUSR1)
	<-never
}

func cwd() string {
	dir, _ := os.Getwd()
	return dir
}

func spawn(arg string) {
	cmd := exec.Command("/guest", arg)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fail(err.Error())
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}
