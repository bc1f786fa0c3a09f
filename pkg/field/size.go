package field

// NumberBytes is an upper bound of an integer's length in JSON.
const NumberBytes = len("-9223372036854775808")

// TimeBytes is an upper bound of a time's length in JSON, with its quotes.
const TimeBytes = len(`"2006-01-02T15:04:05.999999999-07:00"`)

// TextBytes returns an upper bound of a text's length in JSON, without its quotes. Where many records are to be packed into
// few transactions, bounds are much cheaper than encoding the records to know their size.
func TextBytes(s string) int {
	const escape = len(`\u0000`)
	if !Plain(s) {
		return escape * len(s)
	}
	return len(s)
}

// Plain reports whether a text is in JSON as it is.
func Plain(s string) bool {
	for i := range len(s) {
		if escaped[s[i]] {
			return false
		}
	}
	return true
}

// escaped are the bytes in whose place JSON may have something else.
var escaped = func() (is [256]bool) {
	for b := range is {
		is[b] = b < ' ' || b >= 0x7f || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&'
	}
	return is
}()
