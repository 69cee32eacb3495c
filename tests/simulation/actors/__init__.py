"""Those who use the engine, and what befalls it. An actor does one thing a step, by dice of its own."""
