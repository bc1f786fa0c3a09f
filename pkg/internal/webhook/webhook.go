// Package webhook posts JSON over HTTP. The status of the response is the server's answer.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// In bytes: how much of a response is read, and how much of it an error shows.
const (
	maxAnswer = 64 * 1024
	maxReason = 300
)

// CheckURL returns, as a *field.Error of the given field, why a URL cannot be used.
func CheckURL(name, text string) error {
	u, err := url.Parse(text)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return &field.Error{
			Field: name, Value: text,
			Allowed: `a URL such as "https://gate.example/check", without a user or a password`,
		}
	}
	return nil
}

// asker follows no redirect, because only the given URL is allowed to answer.
var asker = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Ask posts the body as JSON, once. A status outside 200 to 299, also of a redirect, is an error. If ctx ends before
// the timeout, the error is its cause.
func Ask(ctx context.Context, to string, timeout time.Duration, body any) error {
	return Post(ctx, to, to, timeout, body)
}

// Post is Ask for a URL that may be a secret. Errors have name in place of the URL.
func Post(ctx context.Context, to, name string, timeout time.Duration, body any) error {
	if err := CheckURL("url", to); err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode what is posted to %s: %w", name, err)
	}
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(call, http.MethodPost, to, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := asker.Do(req)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case call.Err() != nil:
		return fmt.Errorf("post to %s: no answer within %s", name, timeout)
	case err != nil:
		if of, is := errors.AsType[*url.Error](err); is {
			err = of.Err // without the URL
		}
		return fmt.Errorf("post to %s: %w", name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return nil
	}
	// The status alone decides. If the read fails, the error shows the part that was read.
	reason, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	text := fmt.Sprintf("%s answered %s", name, resp.Status)
	if words := strings.Join(strings.Fields(string(reason)), " "); words != "" {
		text += ": " + field.Cut(words, maxReason)
	}
	return errors.New(text)
}
