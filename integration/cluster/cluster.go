// Package cluster has what the demo and the end-to-end scenarios share.
package cluster

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/app"
)

// Root returns the directory with go.mod, at or above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}

// Artifact is a file and its digest.
type Artifact struct{ URL, SHA256 string }

// HelloArtifact returns the sample program's artifact, which `make build` packs.
func HelloArtifact(root string) (Artifact, error) {
	path := filepath.Join(root, "bin", "hello.tar.gz")
	f, err := os.Open(path)
	if err != nil {
		return Artifact{}, fmt.Errorf("the sample artifact is missing; run `make build`: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return Artifact{}, err
	}
	return Artifact{URL: "file://" + path, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// Hello is a controller of the sample program.
type Hello struct {
	Name         string
	Replicas     int
	Port         int // zero: a dynamic port
	Selector     string
	Env          map[string]string
	MinAvailable *int
	NodeLoss     string // such as "{after: 1s}"
	Disconnect   string // such as "{stop_after: 5s}"
	// HealthTimeout is how long a health check may take; zero: two seconds.
	HealthTimeout time.Duration
	RestartAfter  string // as in the manifest; empty: never
	MinReady      string // as in the manifest; empty: "0s", so that nothing waits for it
	Artifact      Artifact
}

// HelloSpec returns the document for rcctl apply.
func HelloSpec(h Hello) string {
	spec := fmt.Sprintf(`name: %s
replicas: %d
node_selector: %q
`, h.Name, h.Replicas, h.Selector)
	if h.MinAvailable != nil {
		spec += fmt.Sprintf("min_available: %d\n", *h.MinAvailable)
	}
	if h.NodeLoss != "" {
		spec += fmt.Sprintf("node_loss: %s\n", h.NodeLoss)
	}
	spec += fmt.Sprintf(`pod:
  version: 1
  id: %s
  launchables:
  - name: web
    artifact: {kind: tar, url: %q, sha256: %q}
    stop_grace: 5s
`, h.Name, h.Artifact.URL, h.Artifact.SHA256)
	if len(h.Env) > 0 {
		env, _ := json.Marshal(h.Env) // strings always encode
		spec += fmt.Sprintf("    env: %s\n", env)
	}
	if h.Disconnect != "" {
		spec += fmt.Sprintf("  disconnect: %s\n", h.Disconnect)
	}
	if h.HealthTimeout == 0 {
		h.HealthTimeout = 2 * time.Second
	}
	if h.MinReady == "" {
		h.MinReady = "0s"
	}
	port := fmt.Sprintf("port: %d", h.Port)
	if h.Port == 0 {
		port = "dynamic: true"
	}
	spec += fmt.Sprintf(`  min_ready: %s
  ports:
  - {name: http, %s}
  health:
    http: {port: http, path: /health}
    interval: 1s
    timeout: %s
`, h.MinReady, port, h.HealthTimeout)
	if h.RestartAfter != "" {
		spec += fmt.Sprintf("    restart_after: %s\n", h.RestartAfter)
	}
	return spec
}

// ReadState reads the record of a development cluster.
func ReadState(dir string) (app.DevState, error) {
	var s app.DevState
	data, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// Until checks a condition every 20 ms until it holds or ctx ends.
func Until(ctx context.Context, condition func() error) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// Get fetches a page. Any status but 200 is an error.
func Get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d: %s", url, resp.StatusCode, body)
	}
	return string(body), err
}

// Kill sends a signal to a pid given as text.
func Kill(pid string, sig syscall.Signal) error {
	n, err := strconv.Atoi(pid)
	if err != nil || n <= 1 {
		return fmt.Errorf("%q is no pid", pid)
	}
	return syscall.Kill(n, sig)
}

// FirstLine sends the first line with the prefix to found. It reads on, so that the writer never blocks.
func FirstLine(r io.Reader, prefix string, found chan<- string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), prefix) {
			select {
			case found <- lines.Text():
			default: // only the first counts
			}
		}
	}
}

// ProcessesUnder describes the processes whose command line or working directory names something below dir.
func ProcessesUnder(dir string) ([]string, error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, p := range procs {
		if filepath.Base(p) == strconv.Itoa(os.Getpid()) {
			continue
		}
		// A process that ends meanwhile has neither.
		cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(p, "cwd"))
		text := strings.ReplaceAll(string(cmdline), "\x00", " ")
		if strings.Contains(text, dir) || strings.HasPrefix(cwd, dir) {
			found = append(found, filepath.Base(p)+": "+strings.TrimSpace(text))
		}
	}
	return found, nil
}
