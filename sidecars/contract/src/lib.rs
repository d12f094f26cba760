//! Data and pure functions that every role of bottle shares.
//!
//! The host command, the bundle and the guest know of each other only what stands here. Nothing in
//! this crate opens a socket, reads a file, looks at the clock or draws a random number; what needs
//! one of those takes it as an argument. That is what lets `bottle policy check` explain exactly what
//! the proxy enforces: both call [`decide`].
//!
//! ```text
//! names      what things are called: slugs, ports, paths inside a bottle
//! secret     a string that will not print
//! route      one host and what may be asked of it: one parser, one renderer
//! canonical  host, path and query in the one form that is decided on and forwarded
//! decide     (routes, request facts, findings) → verdict, reason, sentence
//! address    where no connection may lead, whatever name led there
//! credential a secret bound to its place
//! authority  what a change of routes newly allows
//! canary     a secret that opens nothing
//! proposal   what an agent may propose, and how it is laid over the live routes
//! queue      what is asked of a user, and the answer
//! audit      decisions as chained lines
//! lock_out   when a bottle that guesses at credentials is stopped
//! usage      what an answer of a model cost, in tokens
//! dns        the resolver's answers
//! terminal   what an agent writes, made fit for a user's terminal
//! yaml       how every document is read and written: strict, bounded, with positions
//! session    the frames between host, guest and bundle
//! ```

pub mod address;
pub mod audit;
pub mod authority;
pub mod canary;
pub mod canonical;
pub mod credential;
pub mod decide;
pub mod dns;
pub mod lock_out;
pub mod names;
pub mod proposal;
pub mod queue;
pub mod route;
pub mod secret;
pub mod session;
pub mod terminal;
pub mod usage;
pub mod yaml;
