//! Tests of the whole proxy over real sockets, with real clients and fake sites.

mod client;
mod fixture;

mod answers;
mod approval;
mod attacks;
mod decisions;
mod forged;
mod hostile;
mod lock_out;
mod network;
mod one_time_grant;
mod oracle;
mod outbound_bodies;
mod own_rules;
mod parts;
mod protocols;
mod soak;
mod streams;
mod upstreams;
mod usage;
