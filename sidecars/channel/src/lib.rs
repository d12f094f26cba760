//! The session protocol's frames over any byte stream.
