package nodeapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/scale"
)

// scaleLimit is how long the body of a scale request may take to come.
const scaleLimit = 30 * time.Second

// paramNode names the node that a scale request is for; another one refuses it.
const paramNode = "node"

// scaleStatus are the statuses of what may become of a scale request.
var scaleStatus = []struct {
	err    error
	status int
}{
	{scale.ErrInvalid, http.StatusBadRequest},
	{scale.ErrUnknownService, http.StatusNotFound},
	{scale.ErrConflict, http.StatusConflict},
	{scale.ErrUnavailable, http.StatusServiceUnavailable},
}

// scale takes a request for the node's share of a service. Programs of others send it, which know nothing but the wire: it needs no header of ours, since no page in a
// browser reaches a socket, or has the token that an address asks for.
func (s *Server) scale(w http.ResponseWriter, r *http.Request) {
	status, why := s.known(r, cmp.Or(r.URL.Query().Get(paramNode), s.cfg.Node))
	if why != "" {
		answerScale(w, scale.Response{Message: why}, status)
		return
	}
	over, why := s.slot(r, s.scales)
	if why != "" {
		answerScale(w, scale.Response{Message: why}, http.StatusTooManyRequests)
		return
	}
	defer over()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(scaleLimit)) // else it takes as long as it takes
	req, err := scale.Decode(r.Body)
	if err != nil {
		answerScale(w, scale.Response{Service: req.Service, Message: err.Error()}, http.StatusBadRequest)
		return
	}
	answer, err := s.pods.Scale(r.Context(), req)
	if status = http.StatusOK; err != nil {
		status = http.StatusInternalServerError
		for _, known := range scaleStatus {
			if errors.Is(err, known.err) {
				status = known.status
				break
			}
		}
		answer.Success, answer.Message = false, err.Error()
	}
	answerScale(w, answer, status)
}

// answerScale writes an answer. One that refuses has done with its connection, of which the body may not have been read.
func answerScale(w http.ResponseWriter, answer scale.Response, status int) {
	data, err := json.Marshal(answer)
	if err != nil {
		data, status = []byte("{}"), http.StatusInternalServerError // cannot be: it is made of plain fields
	}
	if status != http.StatusOK {
		hangUp(w)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // who has gone reads no answer
}

// RefusedError is a scale request that was not carried out.
type RefusedError struct {
	Status int // of HTTP
	Answer scale.Response
}

// Error says what the node says.
func (e *RefusedError) Error() string { return e.Answer.Message }

// Scale sends a scale request. It returns *RefusedError where the node answers that it was not carried out.
func (c *Client) Scale(ctx context.Context, r scale.Request) (scale.Response, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return scale.Response{}, fmt.Errorf("encode the request: %w", err)
	}
	resp, err := c.send(ctx, http.MethodPost, scale.Path, url.Values{paramNode: {c.node}}, bytes.NewReader(body))
	if err != nil {
		return scale.Response{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, scale.MaxBytes))
	if err != nil {
		return scale.Response{}, fmt.Errorf("read the answer: %w", err)
	}
	var answer scale.Response
	if err := json.Unmarshal(text, &answer); err != nil { // an older preparer answers in its own words
		answer = scale.Response{Service: r.Service, Message: strings.TrimSpace(string(text))}
	}
	switch status := resp.StatusCode; status {
	case http.StatusOK:
		return answer, nil
	case http.StatusUnauthorized, http.StatusMisdirectedRequest:
		return answer, fmt.Errorf("%w: %s", wellKnown[status], answer.Message)
	default:
		return answer, &RefusedError{Status: status, Answer: answer}
	}
}
