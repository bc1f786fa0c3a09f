package loop

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// A failure that comes and goes does not fill the log.
func TestAFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	log, err := obs.NewLogger(&buf, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	tr := NewLogLimiter(log)
	for range 5 {
		tr.Report("intents", "cannot be read", errors.New("refused"))
		tr.Report("intents", "cannot be read", errors.New("refused"))
		tr.Over("intents")
	}
	tr.Report("intents", "cannot be read", fmt.Errorf("list: %w", store.ErrFiltered))
	lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], "works again") ||
		!strings.Contains(lines[2], "the ACL token lacks a read permission") {
		t.Errorf("log:\n%s", buf.String())
	}
}
