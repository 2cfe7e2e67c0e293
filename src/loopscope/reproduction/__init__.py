"""The paper's runs, all or some of them: what they take, and everything that is made of them."""
