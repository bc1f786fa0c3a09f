package nodeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

// over adds no headers of Client.
func over(n *node) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.cfg.socket())
		},
	}}
}

func post(t *testing.T, client *http.Client, url, body string, header http.Header) (int, scale.Response) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer scale.Response
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Errorf("%s: the answer is no document: %v", body, err)
	}
	return resp.StatusCode, answer
}

// Each outcome has an HTTP status, for programs that know only the published format. Invalid requests do not reach the
// preparer.
func TestScaleStatuses(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	client := over(n)
	for _, c := range []struct {
		body, query string
		becomes     error
		status      int
		message     string
		reaches     bool
	}{
		{body: `{"service":"web","replicas":3}`, status: 200, reaches: true},
		{body: `{"service":"web","replicas":3}`, query: "?node=n1", status: 200, reaches: true},
		{body: `{"service":"web","replicas":3}`, query: "?node=n2", status: 421, message: "not of n2"},
		{body: `{"service":"web","replicas":3`, status: 400, message: "cut off"},
		{body: `{"service":"Web"}`, status: 400, message: "service: "},
		{body: `{"service":"` + strings.Repeat("w", scale.MaxBytes) + `"}`, status: 400, message: "longer than"},
		{
			body: `{"service":"web"}`, becomes: fmt.Errorf("%w: spec", scale.ErrInvalid), status: 400,
			message: "spec", reaches: true,
		},
		{body: `{"service":"web"}`, becomes: scale.ErrUnknownService, status: 404, message: "unknown", reaches: true},
		{body: `{"service":"web"}`, becomes: scale.ErrConflict, status: 409, reaches: true},
		{body: `{"service":"web"}`, becomes: scale.ErrUnavailable, status: 503, reaches: true},
		{
			body: `{"service":"web"}`, becomes: errors.New("the disk is full"), status: 500,
			message: "the disk is full", reaches: true,
		},
	} {
		n.pods.mu.Lock()
		n.pods.scaled, n.pods.asked = c.becomes, nil
		n.pods.mu.Unlock()
		status, answer := post(t, client, "http://socket"+scale.Path+c.query, c.body, nil)
		n.pods.mu.Lock()
		asked := len(n.pods.asked)
		n.pods.mu.Unlock()
		if status != c.status || answer.Success != (status == 200) || !strings.Contains(answer.Message, c.message) ||
			asked == 1 != c.reaches {
			t.Errorf("%.60s%s: %d, %+v, reached %d times", c.body, c.query, status, answer, asked)
		}
	}
}

// A proxy may check a client's content type.
func TestScaleSendsItsContentType(t *testing.T) {
	t.Parallel()
	kinds := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kinds <- r.Header.Get("Content-Type")
		_, _ = io.WriteString(w, "{}")
	}))
	defer server.Close()
	target, err := ParseTarget(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := NewClient("n1", target, "", nil)
	defer client.Close()
	if _, err := client.Scale(t.Context(), scale.New("web", 1)); err != nil {
		t.Fatal(err)
	}
	if kind := <-kinds; kind != "application/json" {
		t.Errorf("a document was sent as %q", kind)
	}
}

// More than maxScales scale requests at a time are refused, and can be tried again.
func TestScalesAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.pods.mu.Lock()
	var all errgroup.Group
	for range maxScales {
		all.Go(func() error {
			_, err := n.client.Scale(t.Context(), scale.New("web", 1))
			return err
		})
	}
	consultest.Eventually(t, patience, func() error {
		if served := len(n.scales); served != maxScales {
			return fmt.Errorf("%d are served", served)
		}
		return nil
	})
	var refused *RefusedError
	if _, err := n.client.Scale(t.Context(), scale.New("web", 1)); !errors.As(err, &refused) ||
		refused.Status != http.StatusTooManyRequests {
		t.Errorf("one more: %v", err)
	}
	n.pods.mu.Unlock()
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

func TestScaleClient(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	want := scale.NewWithAssignments("web", []scale.ScaleAssignment{{Role: "read", Indices: []uint32{1, 2}}})
	if answer, err := n.client.Scale(t.Context(), want); err != nil || !answer.Success || answer.Replicas != 2 {
		t.Errorf("%+v, %v", answer, err)
	}
	n.pods.mu.Lock()
	n.pods.scaled = scale.ErrConflict
	n.pods.mu.Unlock()
	var refused *RefusedError
	if answer, err := n.client.Scale(t.Context(), want); !errors.As(err, &refused) ||
		refused.Status != http.StatusConflict || answer.Success || answer.Replicas != 2 {
		t.Errorf("%+v, %v", answer, err)
	}
	other := NewClient("n2", n.client.Target(), "", nil)
	defer other.Close()
	if _, err := other.Scale(t.Context(), want); !errors.Is(err, ErrOtherNode) {
		t.Errorf("another node: %v", err)
	}
}

// With a network address, each request needs the token.
func TestScaleToken(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	const token = "0123456789abcdef"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, func(c *Config) { c.Addr, c.TokenFile = "127.0.0.1:0", file })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for header, want := range map[string]int{"": 401, "Bearer " + token[1:]: 401, token: 401, "Bearer " + token: 200} {
		if status, answer := post(t, client, n.URL()+scale.Path, `{"service":"web"}`,
			http.Header{"Authorization": {header}}); status != want || answer.Success != (want == 200) {
			t.Errorf("%q: %d, %+v", header, status, answer)
		}
	}
	if len(n.pods.asked) != 1 {
		t.Errorf("%d requests came through", len(n.pods.asked))
	}
}

// A body that is cut off, or shorter than announced, changes nothing.
func TestScaleCutOff(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", n.cfg.socket())
	if err != nil {
		t.Fatal(err)
	}
	body := `{"service":"web","replicas":0}`
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", scale.Path,
		len(body)+10, body)
	if err == nil {
		err = conn.(*net.UnixConn).CloseWrite()
	}
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(conn)
	if !strings.Contains(string(answer), "400 Bad Request") || len(n.pods.asked) != 0 {
		t.Errorf("%s, %d requests came through", answer, len(n.pods.asked))
	}
}
