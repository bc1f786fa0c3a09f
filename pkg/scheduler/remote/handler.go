package remote

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/scheduler"
)

// Handler serves a scheduler, and its books if it implements scheduler.Books, to farms with its URL in --scheduler-url.
// If the scheduler returns an error, the answer is status 503, and the farms ask again later.
func Handler(s scheduler.Scheduler) http.Handler {
	h := &handler{scheduler: s}
	h.books, _ = s.(scheduler.Books)
	mux := http.NewServeMux()
	for path, serve := range map[string]func(*http.Request, *question) (answer, error){
		eligiblePath: h.eligible, allocatedPath: h.allocated, allocatePath: h.allocate, deallocatePath: h.deallocate,
	} {
		mux.HandleFunc("POST /"+path, func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, path, serve) })
	}
	return mux
}

// WithToken refuses requests without the token in a file, which it reads for each request.
func WithToken(file string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := field.ReadWord(file)
		if err != nil {
			http.Error(w, "the scheduler cannot read its token", http.StatusInternalServerError)
			return
		}
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(bearer+token)) != 1 {
			http.Error(w, "the token is missing or another one", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type handler struct {
	scheduler scheduler.Scheduler
	books     scheduler.Books // nil: the scheduler keeps none
}

func (h *handler) eligible(r *http.Request, q *question) (a answer, err error) {
	a.Nodes, a.Refused, err = h.scheduler.EligibleNodes(r.Context(), q.view())
	return a, err
}

func (h *handler) allocated(r *http.Request, q *question) (a answer, err error) {
	if h.books == nil {
		return answer{}, scheduler.ErrNoBooks
	}
	a.Allocations, err = h.books.AllocatedNodes(r.Context(), *q.Owner)
	return a, err
}

func (h *handler) allocate(r *http.Request, q *question) (a answer, err error) {
	a.Allocations, err = h.scheduler.AllocateNodes(r.Context(), *q.Owner, q.view(), q.Wants)
	return a, err
}

func (h *handler) deallocate(r *http.Request, q *question) (answer, error) {
	return answer{}, h.scheduler.DeallocateNodes(r.Context(), *q.Owner, q.Allocations)
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request, path string,
	answerTo func(*http.Request, *question) (answer, error),
) {
	var q question
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, MaxQuestion)).Decode(&q); err != nil {
		http.Error(w, "the question cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := q.check(path); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a, err := answerTo(r, &q)
	switch {
	case errors.Is(err, scheduler.ErrNoBooks):
		http.Error(w, err.Error(), http.StatusNotImplemented)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	a.Version = Version
	data, err := json.Marshal(a)
	if err == nil && len(data) > MaxAnswer {
		err = fmt.Errorf("the answer has %d bytes; allowed: %d", len(data), MaxAnswer)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the farm may be gone
}
