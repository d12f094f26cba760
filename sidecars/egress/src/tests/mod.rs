//! The door as a whole, over real sockets: real clients on one side, fake sites on the other.

mod client;
mod fixture;

mod asking;
mod attacks;
mod decisions;
mod forged;
mod hostile;
mod leaving;
mod lock_out;
mod network;
mod once;
mod oracle;
mod own_rules;
mod parts;
mod protocols;
mod returning;
mod soak;
mod streams;
mod upstreams;
mod usage;
