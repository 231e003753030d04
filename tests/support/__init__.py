"""What tests share: real servers, real processes, and waiting for conditions."""
