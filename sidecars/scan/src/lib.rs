//! What may not leave: the redactor and the detectors.
