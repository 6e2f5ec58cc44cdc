package ipam

// File is the plugin's file, which Find found.
func (c *Client) File() string { return c.file }
