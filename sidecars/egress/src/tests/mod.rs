//! Tests of the complete proxy over real sockets, with real clients and fake sites.

mod client;
mod fixture;

mod approval;
mod budget_suite;
mod bypasses;
mod clients;
mod decisions;
mod forgery;
mod framing;
mod grpc;
mod hostile;
mod http2;
mod leases;
mod lock_out;
mod model_sockets;
mod network;
mod one_time_grant;
mod ordinary_traffic;
mod outbound_secrets;
mod partial_responses;
mod pooling;
mod protocols;
mod registry;
mod replaced_credentials;
mod responses;
mod scripted_sites;
mod side_channels;
mod soak;
mod streams;
mod trace_logs;
mod upstreams;
mod usage;
mod user_rules;
mod websockets;
