package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

type files struct {
	*httptest.Server
	content sync.Map // bytes by path; a node may fetch while a file is added
}

// serveFiles starts the server; trust is an SSL_CERT_FILE for programs that are to trust it.
func (e *env) serveFiles() (f *files, trust string) {
	e.t.Helper()
	f = &files{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, _ := f.content.Load(r.URL.Path)
		data, _ := found.([]byte)
		switch {
		case data == nil:
			http.NotFound(w, r)
		case strings.HasPrefix(r.URL.Path, "/slow"):
			_, _ = w.Write(data[:1000]) // a client that has left does not matter
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case strings.HasPrefix(r.URL.Path, "/truncated"):
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data[:len(data)/2])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case strings.HasPrefix(r.URL.Path, "/broken"):
			w.WriteHeader(http.StatusBadGateway)
		default:
			_, _ = w.Write(data)
		}
	}))
	f.Config.ErrorLog = log.New(&strings.Builder{}, "", 0)
	f.StartTLS()
	e.t.Cleanup(f.Close)
	trust = filepath.Join(e.dir, "server.pem")
	if err := os.WriteFile(trust, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}),
		0o600); err != nil {
		e.t.Fatal(err)
	}
	return f, trust
}

func (f *files) add(path string, data []byte) cluster.Artifact {
	f.content.Store(path, data)
	sum := sha256.Sum256(data)
	return cluster.Artifact{URL: f.URL + path, SHA256: hex.EncodeToString(sum[:])}
}

func (e *env) packWith(entry tar.Header) []byte {
	e.t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	const script = "#!/bin/sh\n"
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "bin/launch", Mode: 0o755, Size: int64(len(script))})
	if err == nil {
		_, err = tw.Write([]byte(script))
	}
	if err == nil {
		err = tw.WriteHeader(&entry)
	}
	if err == nil {
		_, err = tw.Write(make([]byte, entry.Size))
	}
	if err := errors.Join(err, tw.Close(), zw.Close()); err != nil {
		e.t.Fatal(err)
	}
	return buf.Bytes()
}

// badArtifacts: if the artifact of a new version is bad, the old version continues to run, and rcctl pods shows the
// reason.
func badArtifacts(e *env) {
	e.startConsul("")
	server, trust := e.serveFiles()
	e.environ = []string{"SSL_CERT_FILE=" + trust}
	e.preparer(1, "--artifact-max-unpacked-bytes", strconv.Itoa(32<<20), "--artifact-stall-timeout", "1s")
	e.farm("f1", "")
	h := e.hello(1, nil)
	good, err := os.ReadFile(strings.TrimPrefix(h.Artifact.URL, "file://"))
	if err != nil {
		e.t.Fatal(err)
	}
	h.Artifact = server.add("/good.tar.gz", good)
	e.applied(h)
	running := e.processes()
	if len(running) != 1 {
		e.t.Fatalf("processes %v, want 1", running)
	}

	mismatch := server.add("/mismatch.tar.gz", e.packWith(tar.Header{Typeflag: tar.TypeReg, Name: "x", Mode: 0o644}))
	mismatch.SHA256 = strings.Repeat("0", 64)
	unreachable := cluster.Artifact{
		URL:    "https://" + e.address(250) + ":1/a.tar.gz",
		SHA256: h.Artifact.SHA256[1:] + "0",
	}
	missing := cluster.Artifact{URL: server.URL + "/none.tar.gz", SHA256: strings.Repeat("1", 64)}
	bad := func(name string, entry tar.Header) cluster.Artifact {
		return server.add("/"+name+".tar.gz", e.packWith(entry))
	}
	other := append([]byte{},
		e.packWith(tar.Header{Typeflag: tar.TypeReg, Name: "noise", Mode: 0o644, Size: 1 << 20})...)
	tests := []struct {
		name     string
		artifact cluster.Artifact
		want     []string
	}{
		{"digest mismatch", mismatch, []string{"expected " + mismatch.SHA256, "the fetched file has another digest"}},
		{
			"path escape", bad("path", tar.Header{Typeflag: tar.TypeReg, Name: "../../evil", Mode: 0o644}),
			[]string{`entry "../../evil": leaves the archive`},
		},
		{
			"link escape", bad("link", tar.Header{Typeflag: tar.TypeSymlink, Name: "etc", Linkname: "/etc"}),
			[]string{`entry "etc": symbolic link to the absolute path "/etc"`},
		},
		{
			"device", bad("device", tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Mode: 0o644, Devmajor: 8}),
			[]string{`entry "sda": is a block device`},
		},
		{
			"setuid", bad("setuid", tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o4755}),
			[]string{`entry "su": mode 4755 has setuid`},
		},
		{
			"bomb", bad("bomb", tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Mode: 0o644, Size: 64 << 20}),
			[]string{`entry "zeros": with its 67108864 bytes`, "allowed: at most 33554432 bytes unpacked"},
		},
		{"no program", func() cluster.Artifact {
			var buf bytes.Buffer
			zw := gzip.NewWriter(&buf)
			if err := errors.Join(tar.NewWriter(zw).Close(), zw.Close()); err != nil {
				e.t.Fatal(err)
			}
			return server.add("/empty.tar.gz", buf.Bytes())
		}(), []string{"bin/launch: no such file or directory"}},
		{"not there", missing, []string{"404 Not Found"}},
		{"unreachable", unreachable, []string{"connection refused", "gave up after 5 tries"}},
		{
			"broken server", server.add("/broken.tar.gz", append(other, 1)),
			[]string{"502 Bad Gateway", "gave up after 5 tries"},
		},
		{
			"truncated", server.add("/truncated.tar.gz", append(other, 2)),
			[]string{"unexpected EOF", "gave up after 5 tries"},
		},
		{
			"slow server", server.add("/slow.tar.gz", append(other, 3)),
			[]string{"the server is too slow", "gave up after 5 tries"},
		},
	}
	for _, tt := range tests {
		h.Artifact = tt.artifact
		e.apply(h)
		e.within(2*limit, func() error {
			pods := e.rcctl("", "pods", "--rc", "hello")
			for _, text := range append(tt.want, "n1", "failed") {
				if !strings.Contains(pods, text) {
					return fmt.Errorf("%s: want %q in\n%s", tt.name, text, pods)
				}
			}
			return nil
		})
		e.sameProcesses(running, tt.name)
	}

	h.Artifact = mismatch
	h.Artifact.SHA256 = server.add("/mismatch.tar.gz", append(bytes.Clone(good), 0)[:len(good)]).SHA256
	h.Env = map[string]string{"VERSION": "2"}
	e.applied(h)
	now := e.processes()
	if len(now) != 1 || fmt.Sprint(now) == fmt.Sprint(running) {
		e.t.Errorf("processes %v, before %v; want one other", now, running)
	}
}
