//! What the library says about an operation while it runs, or beside its result.

/// A sentence for the user. It can contain text of a bottle, which is escaped to one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Information, which a face may leave out.
    Note(String),
    /// Something that the user has to know.
    Warning(String),
}

/// Takes notices at once, in their order.
pub type Notify<'a> = &'a (dyn Fn(Notice) + Sync);

/// Takes notices that nobody reads.
pub fn unheard(_: Notice) {}
