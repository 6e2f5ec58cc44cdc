package ipam

// File returns the path that FindPlugin found.
func (c *Client) File() string { return c.file }
