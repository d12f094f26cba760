//! Manifest in, resolved manifest or error out; a case is a folder.

#![allow(missing_docs)]

mod shipped;
