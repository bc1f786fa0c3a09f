package install

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

func TestPullText(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]image.Progress{
		"pulling the image of web: asking its registry":        {},
		"pulling 34 of 121 MB of the image of web":             {Done: 34_999_999, Total: 120_000_001, Layers: 3},
		"pulling 0 of 1 MB of the image of web":                {Total: 7, Layers: 1},
		"pulling the image of web: 2 of 3 layers are unpacked": {Done: 7, Total: 7, Layers: 3, Unpacked: 2},
	} {
		if got := pullText("web", p); got != want {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
}

// A pull makes progress while something arrives, for a pause after that, and while only the disk is busy.
func TestArrival(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a := arrival{changed: now, at: now}
	for i, step := range []struct {
		after, want time.Duration
		p           image.Progress
	}{
		{2 * time.Second, 2 * time.Second, image.Progress{}},
		{2 * time.Second, 2 * time.Second, image.Progress{Done: 1, Total: 9, Layers: 2}},
		{29 * time.Second, 29 * time.Second, image.Progress{Done: 1, Total: 9, Layers: 2}},
		{2 * time.Second, 0, image.Progress{Done: 1, Total: 9, Layers: 2}},
		{time.Minute, 0, image.Progress{Done: 1, Total: 9, Layers: 2}},
		{2 * time.Second, 2 * time.Second, image.Progress{Done: 2, Total: 9, Layers: 2}},
		{2 * time.Second, 2 * time.Second, image.Progress{Done: 9, Total: 9, Layers: 2}},
		{time.Hour, time.Hour, image.Progress{Done: 9, Total: 9, Layers: 2}},
	} {
		now = now.Add(step.after)
		if got := a.see(step.p, now); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

// pullReports is a Progress that passes on the reports of pulls.
type pullReports struct {
	quiet
	texts chan string
}

func (p pullReports) Pulling(text string, _ time.Duration) { p.texts <- text }

// While a layer arrives slowly, reports say how far the pull is. They end with the pull.
func TestASlowPullIsReported(t *testing.T) {
	t.Parallel()
	n, reg, m := nodeWithImages(t)
	open := make(chan struct{})
	reg.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			<-open
		}
		return false
	})
	reports := pullReports{texts: make(chan string, 1000)}
	ended := make(chan error, 1)
	go func() {
		_, err := n.Fetch(t.Context(), m, reports)
		ended <- err
	}()
	if text := <-reports.texts; !strings.HasPrefix(text, "pulling ") {
		t.Errorf("%q", text)
	}
	close(open)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	close(reports.texts)
	last := "none"
	for text := range reports.texts {
		last = text
	}
	if last != "" {
		t.Errorf("the last report is %q; want an empty one", last)
	}
}
