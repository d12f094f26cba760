//! Pending proposals of bottles: the changes that an approval would make, and the answers.
//!
//! A proposal is untrusted text from a bottle. It is escaped before it is shown, and is never executed.
//!
//! ```text
//! pending      the proposals of the queue            route_change  what an approval changes in a bottle's routes
//! report_text  the report of a finding, as text      scope         the scope of an approval
//! answer       the only module that answers          review        a proposal in full, and an answer to what was shown
//! ```

pub mod answer;
pub mod pending;
pub mod report_text;
pub mod review;
pub mod route_change;
pub mod scope;
