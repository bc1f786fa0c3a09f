package registry_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/oci/registry"
)

// What a registry says becomes a part of errors, which are reported and shown on terminals.
func TestErrorsOfAHostileRegistry(t *testing.T) {
	said := `{"code":"DENIED","message":"a\u001b[2J\nb","detail":"` + strings.Repeat("x", 300) + `"}`
	reg := imagetest.New(t)
	reg.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"errors":[` + strings.Repeat(said+",", 15) + said + `]}`))
		return true
	})
	_, err := open(t, quick(reg), reg.Host+"/web:1").Manifest(t.Context(), imagetest.Digest(nil))
	if !errors.Is(err, registry.ErrDenied) || !strings.Contains(err.Error(), "denied: ") ||
		strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 1000 {
		t.Errorf("%d bytes: %q", len(err.Error()), err)
	}
}
