package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// parseAnswer accepts an answer up to the bounds of messages, and refuses a larger answer.
func TestBoundsOfAnAnswer(t *testing.T) {
	t.Parallel()
	reasons := func(n int) scheduler.Reasons {
		all := scheduler.Reasons{}
		for i := range n {
			all[scheduler.Reason(fmt.Sprint("reason ", i))] = i
		}
		return all
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, of := range map[string]func(over int) answer{
		"nodes": func(over int) answer { return answer{Nodes: slices.Repeat([]string{"n"}, maxEntries+over)} },
		"allocations": func(over int) answer {
			return answer{Allocations: slices.Repeat([]scheduler.Allocation{{Node: "n"}}, maxEntries+over)}
		},
		"reasons": func(over int) answer { return answer{Refused: reasons(maxReasons + over)} },
		"name":    func(over int) answer { return answer{Nodes: []string{long(maxName + over)}} },
		"reason": func(over int) answer {
			return answer{Refused: scheduler.Reasons{scheduler.Reason(long(maxReason + over)): 1}}
		},
		"count": func(over int) answer { return answer{Refused: scheduler.Reasons{"resources": -over}} },
	} {
		for over := range 2 {
			a := of(over)
			a.Version = Version
			data, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseAnswer(data)
			if (err != nil) != (over > 0) {
				t.Errorf("%s, %d over: %v", name, over, err)
			}
			if over == 0 && (len(got.Nodes) != len(a.Nodes) || len(got.Allocations) != len(a.Allocations) ||
				!maps.Equal(got.Refused, a.Refused)) {
				t.Errorf("%s: another answer was read", name)
			}
		}
	}
}

// server is a transport that answers the questions of a client.
type server func() (status int, body string)

func (s server) RoundTrip(*http.Request) (*http.Response, error) {
	status, body := s()
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func asking(s server) *Client {
	return &Client{base: &url.URL{Scheme: "http", Host: "scheduler.example"}, http: &http.Client{Transport: s}}
}

// size returns how many bytes a message has.
func size(t *testing.T, message any) int {
	t.Helper()
	data, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return len(data)
}

// naming is a scheduler that names one node.
type naming struct {
	scheduler.NoBooks
	name string
}

func (n naming) EligibleNodes(context.Context, *scheduler.View) ([]string, scheduler.Reasons, error) {
	return []string{n.name}, nil, nil
}

// A message can have as many bytes as the bound allows. A larger message is not sent, and not read.
func TestBoundsInBytes(t *testing.T) {
	t.Parallel()
	const least = `{"version":1}`
	for name, send := range map[string]func(over int) error{
		"question": func(over int) error {
			q, asked := question{Version: Version, Ask: &scheduler.Ask{}}, 0
			q.Ask.RCName = strings.Repeat("x", MaxQuestion-size(t, q)+over)
			_, err := asking(func() (int, string) { asked++; return http.StatusOK, least }).ask(t.Context(),
				eligiblePath, q)
			if asked != 1-over {
				t.Errorf("the question was sent %d times, with %d bytes over", asked, over)
			}
			return err
		},
		"answer that comes": func(over int) error {
			body := least + strings.Repeat(" ", MaxAnswer-len(least)+over)
			_, err := asking(func() (int, string) { return http.StatusOK, body }).ask(t.Context(), eligiblePath,
				question{})
			return err
		},
		"answer that goes": func(over int) error {
			s := naming{name: strings.Repeat("x",
				MaxAnswer-size(t, answer{Version: Version, Nodes: []string{""}})+over)}
			req := httptest.NewRequest(http.MethodPost, "/"+eligiblePath, strings.NewReader(`{"version":1,"ask":{}}`))
			rec := httptest.NewRecorder()
			Handler(s).ServeHTTP(rec, req)
			switch {
			case rec.Code == http.StatusOK && rec.Body.Len() == MaxAnswer+over:
				return nil
			case rec.Code == http.StatusInternalServerError:
				return errors.New(rec.Body.String())
			default:
				t.Errorf("answered %d with %d bytes", rec.Code, rec.Body.Len())
				return nil
			}
		},
	} {
		if err := send(0); err != nil {
			t.Errorf("%s of as many bytes as are allowed: %v", name, err)
		}
		if err := send(1); err == nil || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%s with one byte more: %v", name, err)
		}
	}
}

// A scheduler that keeps no books may keep books later. So the client asks it again after a minute.
func TestBooksAreAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		c := asking(func() (int, string) { asked++; return http.StatusNotImplemented, "" })
		for _, step := range []struct {
			after time.Duration
			asked int
		}{{0, 1}, {0, 1}, {time.Minute - 1, 1}, {1, 2}, {0, 2}} {
			<-time.After(step.after)
			_, err := c.AllocatedNodes(t.Context(), scheduler.Owner{})
			if !errors.Is(err, scheduler.ErrNoBooks) || asked != step.asked {
				t.Errorf("%v; asked %d times, want %d", err, asked, step.asked)
			}
		}
	})
}
