package inspect

import (
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/deploy/record"
)

// The age of a service is the age of its revision in effect, even if the document was changed since.
func TestAgeOfAService(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	svc := &record.Service{
		Deployed: record.Deployed{Service: "web", Revision: 2, By: "bob", At: made.Add(time.Hour)},
		History: []record.Entry{
			{Revision: 1, By: "eve", At: made.Add(-time.Hour)},
			{Revision: 2, By: "ann", At: made},
		},
	}
	if v := NewServiceView(svc); v.By != "ann" || !v.At.Equal(made) {
		t.Errorf("%s at %s", v.By, v.At)
	}
	svc.History = nil // then only the record of the deployment has a time
	if v := NewServiceView(svc); v.By != "bob" || !v.At.Equal(made.Add(time.Hour)) {
		t.Errorf("%s at %s", v.By, v.At)
	}
}
