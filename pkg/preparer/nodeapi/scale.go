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

// scaleLimit is how long the body of a scale request may take to arrive.
const scaleLimit = 30 * time.Second

// paramNode has the node for which a scale request is. Another node refuses it.
const paramNode = "node"

var scaleStatus = []struct {
	err    error
	status int
}{
	{scale.ErrInvalid, http.StatusBadRequest},
	{scale.ErrUnknownService, http.StatusNotFound},
	{scale.ErrConflict, http.StatusConflict},
	{scale.ErrUnavailable, http.StatusServiceUnavailable},
}

// scale needs no askHeader, because other programs know only the published format. Pages in browsers are no danger:
// they cannot reach a socket and do not have the token.
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
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(scaleLimit)) // if this fails, there is no limit
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

// answerScale closes the connection after a failure, because the body may not have been read.
func answerScale(w http.ResponseWriter, answer scale.Response, status int) {
	data, err := json.Marshal(answer)
	if err != nil {
		data, status = []byte("{}"), http.StatusInternalServerError // impossible: it has plain fields only
	}
	if status != http.StatusOK {
		hangUp(w)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // fails if the client is gone
}

// RefusedError means that the node refused a scale request.
type RefusedError struct {
	Status int // HTTP status
	Answer scale.Response
}

// Error returns the node's message.
func (r *RefusedError) Error() string { return r.Answer.Message }

// Scale sends a scale request. A refusal is a *RefusedError.
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
	if err := json.Unmarshal(text, &answer); err != nil { // a preparer of an earlier version answers with plain text
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
