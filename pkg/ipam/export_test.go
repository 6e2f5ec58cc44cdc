package ipam

// File returns the path that Find has found.
func (c *Client) File() string { return c.file }
