// Command hello is the sample program of the demo and the end-to-end tests: an HTTP server that answers with its
// identity.
//
// Variables of the environment change its behaviour:
//   - HELLO_FAIL=1 makes it exit at once with status 3; HELLO_FAIL=NODE,NODE does so on some nodes.
//   - HELLO_EXIT=n makes it exit with status n, after it has printed that.
//   - HELLO_ENDS=5s makes it exit with status 3 after that time.
//   - HELLO_SICK=1 makes its health check fail; HELLO_SICK=NODE,NODE does so on some nodes.
//   - HELLO_HUNG=FILE makes it answer no health check while the file exists.
//   - HELLO_VERSION is repeated in its answers.
//   - HELLO_HOSTILE=n makes it harm its node as much as it can, with a tree of directories n deep.
//   - HELLO_ALONE=DIR makes it lock DIR/<pod id>-<role>-<index> while it lives. It writes there when it starts, when it
//     ends, and if another process has the lock.
//   - HELLO_DROP=ID makes it begin as root: it opens /log, gives its volume data to the user ID, goes on as that user,
//     and writes to /log how often it was started.
//   - HELLO_SIEGE=ADDRESS,SOCKET makes it hold 500 connections to the address, or as many as it gets. It writes into
//     its home whether it could connect to the socket.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// here reports whether a variable is 1, or names this node among others.
func here(variable string) bool {
	nodes := strings.Split(os.Getenv(variable), ",")
	return slices.Contains(nodes, "1") || os.Getenv("NODE_NAME") != "" && slices.Contains(nodes, os.Getenv("NODE_NAME"))
}

func main() {
	if here("HELLO_FAIL") {
		fmt.Fprintln(os.Stderr, "failing as HELLO_FAIL says")
		os.Exit(3)
	}
	if status, err := strconv.Atoi(os.Getenv("HELLO_EXIT")); err == nil {
		fmt.Println("ending with status", status, "as HELLO_EXIT says")
		os.Exit(status)
	}
	if after, _ := time.ParseDuration(os.Getenv("HELLO_ENDS")); after > 0 {
		time.AfterFunc(after, func() {
			fmt.Fprintln(os.Stderr, "ending as HELLO_ENDS says")
			os.Exit(3)
		})
	}
	if levels, _ := strconv.Atoi(os.Getenv("HELLO_HOSTILE")); levels > 0 {
		go mischief(levels)
	}
	if address, socket, found := strings.Cut(os.Getenv("HELLO_SIEGE"), ","); found {
		go besiege(address, socket)
	}
	if user, err := strconv.Atoi(os.Getenv("HELLO_DROP")); err == nil {
		if err := drop(user); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := liveAlone(os.Getenv("HELLO_ALONE")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// drop goes on as another user, as servers do that begin as root.
func drop(user int) error {
	log, err := os.OpenFile("/log", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	dir := os.Getenv("VOLUME_DATA")
	err = errors.Join(os.Chown(dir, user, user), syscall.Setgroups(nil), syscall.Setgid(user), syscall.Setuid(user))
	if err != nil {
		return err
	}
	starts, err := os.OpenFile(filepath.Join(dir, "starts"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer starts.Close()
	if _, err := starts.WriteString("."); err != nil {
		return err
	}
	info, err := starts.Stat()
	if err == nil {
		_, err = fmt.Fprintf(log, "start %d as user %d\n", info.Size(), os.Geteuid())
	}
	return err
}

// liveAlone serves if no other process has the lock of its identity in the directory. An empty dir means no lock.
func liveAlone(dir string) error {
	if dir == "" {
		return serve()
	}
	name := fmt.Sprintf("%s-%s-%s", os.Getenv("POD_ID"), os.Getenv("POD_ROLE"), os.Getenv("POD_INDEX"))
	register, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer register.Close() // this unlocks it, as its death would
	say := func(what string) {
		fmt.Fprintln(register, what, os.Getenv("NODE_NAME"), time.Now().UnixMilli())
	}
	if err := syscall.Flock(int(register.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		say("twice")
		return fmt.Errorf("%s lives already: %w", name, err)
	}
	say("start")
	defer say("end")
	return serve()
}

func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(os.Getenv("HELLO_HUNG")); err == nil {
			<-r.Context().Done()
			return
		}
		if here("HELLO_SICK") {
			http.Error(w, "sick as HELLO_SICK says", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "hello from %s-%s-%s on %s, pid %d, version %s\n", os.Getenv("POD_ID"), os.Getenv("POD_ROLE"),
			os.Getenv("POD_INDEX"), os.Getenv("NODE_NAME"), os.Getpid(), os.Getenv("HELLO_VERSION"))
	})
	server := &http.Server{
		Addr:    net.JoinHostPort(os.Getenv("NODE_ADDRESS"), os.Getenv("PORT_HTTP")),
		Handler: mux, ReadHeaderTimeout: 5 * time.Second,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	fmt.Println("listening on", server.Addr)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	fmt.Println("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// mischief makes files that are hard to walk and to delete, a process that is hard to stop, and a large log. Errors are
// ignored, because an earlier process of the pod may have done the same.
func mischief(levels int) {
	home := os.Getenv("POD_HOME")
	_ = syscall.Mkfifo(filepath.Join(home, "pipe"), 0o600)
	_ = os.Symlink("/", filepath.Join(home, "link"))
	_ = os.Mkdir(filepath.Join(home, "closed"), 0)
	if f, err := os.Create(filepath.Join(home, "sparse")); err == nil {
		_ = errors.Join(f.Truncate(1<<40), f.Close())
	}
	child := exec.Command("/bin/sh", "-c", `trap "" TERM INT HUP; while :; do sleep 1; done`)
	child.Env, child.SysProcAttr = []string{}, &syscall.SysProcAttr{Setsid: true}
	_ = child.Start()
	go func() { _ = child.Wait() }()
	if err := deep(home, levels); err != nil {
		fmt.Println("deep:", err)
	}
	fmt.Println("mischief done")
	for range time.Tick(100 * time.Millisecond) {
		fmt.Println("stretching the log")
		_ = os.Stdout.Truncate(1 << 40)
	}
}

// besiege writes whether it could connect to the socket. Then it holds 500 connections to an address, and replaces
// those that it loses.
func besiege(address, socket string) {
	told := "let in"
	if conn, err := net.Dial("unix", socket); err != nil {
		told = err.Error()
	} else {
		_ = conn.Close()
	}
	_ = os.WriteFile(filepath.Join(os.Getenv("POD_HOME"), "told"), []byte(told), 0o600)
	for range 500 {
		go func() {
			for range time.Tick(10 * time.Millisecond) {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					continue
				}
				fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\nHost: ")
				_, _ = conn.Read(make([]byte, 1)) // until the server closes the connection
				_ = conn.Close()
			}
		}()
	}
}

func deep(dir string, levels int) error {
	at, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	for n := 0; n < levels && err == nil; n++ {
		var next int
		if err = syscall.Mkdirat(at, "d", 0o700); err == nil {
			next, err = syscall.Openat(at, "d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
		}
		_ = syscall.Close(at)
		at = next
	}
	return err
}
