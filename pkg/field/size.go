package field

// NumberBytes is an upper bound of an integer's length in JSON.
const NumberBytes = len("-9223372036854775808")

// TimeBytes is an upper bound of a time's length in JSON, with its quotes.
const TimeBytes = len(`"2006-01-02T15:04:05.999999999-07:00"`)

// TextBytes returns an upper bound of a text's length in JSON, without its quotes. Where many records are to be packed into
// few transactions, bounds are much cheaper than encoding the records to know their size.
func TextBytes(s string) int {
	const escape = len(`\u0000`)
	for i := range len(s) {
		if b := s[i]; b < ' ' || b >= 0x7f || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&' {
			return escape * len(s)
		}
	}
	return len(s)
}
