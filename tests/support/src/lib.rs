//! Temporary homes, fake upstreams and snapshot filters for the tests and benches.
