//! Messages of the library about an operation, during the operation or in addition to its result.

/// A sentence for the user. The sentence can contain text from a bottle, which is escaped to one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Information that an interface may leave out.
    Note(String),
    /// Information that every interface must show to the user.
    Warning(String),
}

/// Receives notices immediately, in order.
pub type Notify<'a> = &'a (dyn Fn(Notice) + Sync);

/// Discards notices.
pub fn unheard(_: Notice) {}
